"""Empty stand-in: sglang.srt imports torchvision at module level, only for image models."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.0.0"

# Names of interpolation modes that are read at import time.
_INTERPOLATION = {"NEAREST": 0, "NEAREST_EXACT": 0, "LANCZOS": 1, "BILINEAR": 2, "BICUBIC": 3, "BOX": 4, "HAMMING": 5}


class _Absent:
    """Any class of torchvision: it can be named and subclassed, never called."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        raise RuntimeError("torchvision is not installed")

    def __class_getitem__(cls, key):
        return cls


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Absent,), dict(_INTERPOLATION))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []


sys.meta_path.insert(0, _Finder())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return importlib.import_module(f"torchvision.{name}")
