"""What computes: attention, linear layers, norms and rotary embeddings, behind one interface for models.

Contents::

    batch        ForwardBatch and Span: the packed tokens of a forward pass
    backends/    a decoder layer, by torch operations (TorchBackend) or by compiled C (NativeBackend)
    attention/   the calls of the attention kernel for a batch of chains and trees
    linear/      linear layers in the layout their processor wants, and the probe for batch invariance
    native/      kernels.c, compiled on the machine that runs it

A backend provides (``backends.base.Backend``):

* ``padded_rows``: the number of rows a forward pass is padded to;
* ``add_rmsnorm`` and ``silu_mul``: the operations between linear layers;
* ``layers``: one forward pass, layer by layer, which writes keys and values to the cache and attends over it.

Every backend keeps these promises, and ``tests/models/test_invariance.py`` tests them:

* Batch invariance. The bits of a row depend on its own token, its position and the tokens it sees, and on nothing else:
  not on the number of rows, on other sequences, on a row's place in a tree, on where a prompt is cut into chunks, on
  stale cache rows, or on the number of padding rows.
* A model keeps the backend it was built with, as two backends round at different places.
* A backend that cannot run on a machine is not chosen there; ``make_backend`` finds one that can.

The next release replaces the insides: ``linear``, ``attention`` and ``native`` now search for shapes in which library
kernels keep the promise (``linear.batch_invariance``, ``attention.key_blocks``, ``attention.tile_sizes``); kernels of
our own will keep it by construction. ``Backend``, ``LayerWeights`` and ``ForwardBatch`` are what models rely on.
"""
