"""What a process that serves does with the memory that calls gave back."""

import platform
import subprocess
import sys

import pytest

_BATCHES = """
import resource
from store_service.telemetry import keep_memory
def batch():
    return [b"x" * 65_536 for _ in range(64)]
keep_memory()
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other ways, which are left as they are")
def test_large_results_lie_where_those_before_them_lay() -> None:
    ran = subprocess.run([sys.executable, "-c", _BATCHES], capture_output=True, text=True, check=True)
    pages_of_a_batch = 64 * 65_536 // 4_096
    assert int(ran.stdout) < 2 * pages_of_a_batch, "each batch asked the kernel for its pages"
