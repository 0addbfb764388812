"""The checks of ``outrider certify`` in a program: is speculation lossless with this model, on this machine?"""

import sys

from outrider import LLM
from outrider_lab.certify.session import QUICK, certify
from outrider_lab.data.workloads import load

with LLM("smollm2-135m-instruct", spec_length=4) as llm:
    report = certify(llm, load("mix", count=1), QUICK, sources=["lookup"], verifiers=["matching"])
    print("\n".join(report.lines()))
    sys.exit(0 if report.passed else 1)
