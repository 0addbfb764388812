"""Measurements that the documents report, each a command: ``python -m benchmarks.NAME``."""

import os

from outrider.drafters.shared_answers import VARIABLE

os.environ.setdefault(VARIABLE, "now")  # what is drafted does not depend on earlier runs
