"""Import-time stand-in for triton on a machine without a GPU: decorators pass through, nothing runs."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "3.0.0"

_SUBMODULES = ("language", "runtime", "compiler", "backends", "testing", "tools")


class _Anything:
    """Any value of triton: a decorator with or without arguments, and every attribute of itself."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        is_bare_decorator = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_bare_decorator else (lambda function: function)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __class_getitem__(cls, key):
        return cls

    def __mro_entries__(self, bases):
        return ()


def _stand_in(name):
    """A class where the name looks like one, else a value."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (_Anything,), {}) if name[:1].isupper() else _Anything()


class _Module(types.ModuleType):
    def __getattr__(self, name):
        return _stand_in(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("triton."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []


sys.meta_path.insert(0, _Finder())


def cdiv(a, b):
    return -(-a // b)


def next_power_of_2(n):
    return 1 if n <= 1 else 1 << (n - 1).bit_length()


def __getattr__(name):
    return importlib.import_module(f"triton.{name}") if name in _SUBMODULES else _stand_in(name)
