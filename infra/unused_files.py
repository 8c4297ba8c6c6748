"""Delete the packages and files that no function imports. Lambda allows 262 MB of code and layers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# tokenizers requires huggingface-hub, to download tokenizers from a hub, which the gateway never does. Only huggingface-hub needs
# the other packages. A test compares the installed packages with those that the functions import.
UNUSED_PACKAGES: Final = frozenset(
    {
        "huggingface-hub",
        "hf-xet",
        "filelock",
        "fsspec",
        "httpcore2",
        "httpx2",
        "packaging",
        "tqdm",
        "truststore",
    }
)
# numpy imports these packages of its own only when a program asks for them. A test reads that no function does.
UNUSED_IN_NUMPY: Final = ("f2py", "fft", "polynomial", "random", "testing")
# boto3 contains a description of every AWS service. The gateway uses only these.
_USED_AWS_SERVICES: Final = frozenset({"events", "lambda", "s3", "scheduler", "sqs", "ssm", "stepfunctions", "sts"})
# Stubs are for type checkers, the others for compilers of C and Cython.
_BUILD_FILES: Final = ("*.pyi", "*.a", "*.h", "*.pxd", "*.pyx")
# Extensions of numpy that only its own tests import.
_TESTS_OF_NUMPY: Final = ("_core/_*_tests.*.so", "_core/_simd.*.so")


def delete_unused_files(packages: Path) -> None:
    """Delete from the folder of installed packages what no function imports."""
    for folder in _unused_folders(packages):
        shutil.rmtree(folder)
    for pattern in (*_BUILD_FILES, *(f"numpy/{one}" for one in _TESTS_OF_NUMPY)):
        for file in packages.rglob(pattern):
            file.unlink()


def _unused_folders(packages: Path) -> Iterator[Path]:
    numpy = packages / "numpy"
    yield from (numpy / name for name in UNUSED_IN_NUMPY if (numpy / name).is_dir())
    yield from [folder for folder in numpy.glob("**/tests") if folder.is_dir()]
    services = packages / "botocore" / "data"
    yield from (folder for folder in services.iterdir() if folder.is_dir() and folder.name not in _USED_AWS_SERVICES)
