"""Kernels: the native library, and attention, linear layers and norms on torch, with one batch format.

Contents::

    batch        ForwardBatch and Span: the packed tokens of a forward pass
    native/      a whole forward pass on a CPU in C: sources, their compilation, and matrices in their layout
    layers       decoder layers of torch operations: GPUs, and CPUs without the library
    attention/   torch's attention for a batch of chains and trees, in calls of one shape
    linear       linear layers on torch, in calls of one number of rows on a CPU

``models.factory`` chooses: the native library on CPUs, torch elsewhere. Both keep these promises, and
``tests/models/test_invariance.py`` tests them:

* Batch invariance. The bits of a row depend on its token, its position and the tokens it attends to alone:
  not on the number of rows, on other sequences, on a row's place in a tree, on where a prompt is cut into chunks, on
  stale cache rows, or on the number of padding rows. The library keeps it by construction (``docs/native.md``), on any
  processor; torch's kernels choose an order by the shape of a call, so calls have fixed shapes.
* A model keeps the implementation it was built with, as two implementations round differently.
"""
