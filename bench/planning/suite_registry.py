"""Find and load suites: the files in suites/, files of the user's own, and models of libraries by their names."""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import suites  # before any folder of the user's is on sys.path
from bench.spec.errors import UsageError, nearest, unknown
from bench.spec.request import Request
from bench.spec.suite import Parameter, Suite
from bench.spec.trial import SuiteRef

# The packages whose models are suites, by what stands before a model's name. ``suites/_PREFIX.py``
# builds them, and ampmeter's extra of that name installs the package.
LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}
# Above any number that a suite takes.
MOST = 1e18
BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}


def names() -> list[str]:
    """Return the names of the suites that come with the project, sorted."""
    return sorted(
        path.stem for path in Path(suites.__path__[0]).glob("*.py") if not path.stem.startswith("_")
    )


def refer(word: str, settings: Mapping[str, str] | None = None) -> SuiteRef:
    """Turn ``--suite``'s word, a name or a path ending in .py, into a reference that any process can load.

    Args:
        word: the suite's name, the path of a suite file, or a library's model as in
            ``timm:resnet18``.
        settings: values of arguments of its ``suite()``, as text; each is converted to the type of
            the argument's default, and names that it lacks are ignored.

    Raises:
        UsageError: there is no such suite, or its file cannot be loaded.
    """
    ref = _find(word)
    defaults = parameters(ref)
    converted = []
    for name, text in sorted((settings or {}).items()):
        if name in defaults:
            converted.append((name, _convert("--set", name, text, defaults[name])))
    ref = replace(ref, parameters=tuple(converted))
    suite = load(ref)
    code = Path(_module(ref).__file__ or "").read_bytes()
    if _library(word) and ref.file:
        code += (Path(ref.file) / "config.json").read_bytes()
    return replace(ref, name=suite.name, digest=hashlib.blake2b(code, digest_size=6).hexdigest())


def _find(word: str) -> SuiteRef:
    """Return the reference of a suite by its name or place, without its parameters."""
    library, path = _library(word), Path(word)
    if library:
        folder = Path(word.partition(":")[2])
        if "/" in word and folder.is_dir():
            folder = folder.resolve()
            return SuiteRef(name=f"{library}:{folder.name}", file=str(folder))
        return SuiteRef(name=word)
    if word.endswith(".py"):
        if not path.is_file():
            raise UsageError(f"There is no suite file '{word}'.")
        return SuiteRef(name=path.stem, file=str(path.resolve()))
    if word not in names():
        others = ("FILE.py", "timm:MODEL", "torchvision:MODEL", "hf:MODEL")
        raise unknown("suite", word, (*names(), *others))
    return SuiteRef(name=word)


def _library(name: str) -> str:
    """Return the library's prefix in the name of a suite; empty where there is none."""
    prefix, colon, _ = name.partition(":")
    return prefix if colon and prefix in LIBRARIES else ""


def matching(pattern: str) -> list[str]:
    """Return the names of a library's models that match a pattern such as ``timm:resnet*``, sorted.

    Raises:
        UsageError: the pattern names no library, the library is not installed, or no name matches.
    """
    prefix, _, rest = pattern.partition(":")
    if prefix not in LIBRARIES:
        examples = "'timm:*', 'torchvision:*', 'hf:*' or 'timm:resnet*'"
        raise UsageError(
            f"list takes a library and a pattern, such as {examples}, not '{pattern}'."
        )
    known = [f"{prefix}:{name}" for name in _library_module(prefix).names()]
    matches = fnmatch.filter(known, f"{prefix}:{rest or '*'}")
    if not matches:
        raise UsageError(
            f"None of the {len(known)} models of {prefix} matches "
            f"'{pattern}'.{nearest(pattern, known)}"
        )
    return sorted(matches)


def _library_module(prefix: str) -> ModuleType:
    """Import what builds the models of a library.

    Raises:
        UsageError: the library is not installed.
    """
    package = LIBRARIES[prefix]
    if importlib.util.find_spec(package) is None:
        raise UsageError(
            f"{prefix}:NAME needs {package}, which is not installed: pip install "
            f"'ampmeter[{prefix}]'."
        )
    return importlib.import_module(f"suites._{prefix}")


def select(request: Request, *, on_cpu: bool = False) -> dict[SuiteRef, Suite]:
    """Return the suites of a request with their parameters: one for each swept value.

    Args:
        request: names suites, parameters and values to sweep.
        on_cpu: whether nothing but a CPU measures, for which a suite may have parameters of its
        own.

    Raises:
        UsageError: a suite cannot be loaded, or a parameter or value is not one that they take.
    """
    refs = [refer(word, dict(request.parameters)) for word in request.suites]
    if len({ref.name for ref in refs}) < len(refs):
        raise UsageError(
            f"Two of the suites have the same name: {', '.join(ref.name for ref in refs)}."
        )
    known = {name for ref in refs for name in parameters(ref)}
    named = [name for name, _ in (*request.parameters, *request.sweep)]
    for name in named:  # ignoring one would give wrong results
        if name not in known:
            raise UsageError(
                f"No suite here has a parameter '{name}'.{nearest(name, known)} Available: "
                f"{', '.join(sorted(known))}."
            )
    if on_cpu:
        refs = [_smaller(ref, named) for ref in refs]
    if "batch_size" not in dict(request.sweep):
        refs = [_unlabelled(ref) for ref in refs]
    for name, words in request.sweep:
        refs = [variant for ref in refs for variant in _swept(ref, name, words)]
    return {ref: load(ref) for ref in refs}


def _smaller(ref: SuiteRef, named: list[str]) -> SuiteRef:
    """Return the suite with its parameters for a CPU, but those that were named."""
    smaller = load(ref).cpu_parameters
    return _changed(ref, {name: smaller[name] for name in smaller if name not in named})


def _unlabelled(ref: SuiteRef) -> SuiteRef:
    """Move ``batch_size`` out of the parameters that name a suite: rows have the batch size in a column."""
    rest = dict(ref.parameters)
    size = rest.pop("batch_size", None)
    return replace(ref, parameters=tuple(rest.items()), batch_size=size)


def _swept(ref: SuiteRef, name: str, words: tuple[str, ...]) -> list[SuiteRef]:
    """Return the suite once for each value of a parameter, or it alone if it has no such parameter."""
    defaults = parameters(ref)
    if name not in defaults:
        return [ref]
    values = dict.fromkeys(_convert("--sweep", name, word, defaults[name]) for word in words)
    return [_changed(ref, {name: value}) for value in values]


def _changed(ref: SuiteRef, changes: Mapping[str, Parameter]) -> SuiteRef:
    return replace(ref, parameters=tuple(sorted({**dict(ref.parameters), **changes}.items())))


def load(ref: SuiteRef) -> Suite:
    """Build the suite that ``ref`` refers to.

    Raises:
        UsageError: its file cannot be loaded, with the line at fault.
    """
    function, arguments = _function(ref), dict(ref.parameters)
    if ref.batch_size is not None:
        arguments["batch_size"] = ref.batch_size
    given = " ".join(f"{name}={value}" for name, value in arguments.items())
    what = f"Suite '{ref.file or ref.name}' cannot be built" + (f" with {given}" if given else "")
    with _blaming(what, inspect.getfile(getattr(function, "func", function))):
        suite = function(**arguments)
    if not isinstance(suite, Suite):
        raise UsageError(
            f"{what}: suite() must return a bench.spec.Suite, not {type(suite).__name__}."
        )
    return suite


def parameters(ref: SuiteRef) -> dict[str, Parameter]:
    """Return the arguments of the suite's function with their defaults: what ``--set`` can change.

    Raises:
        UsageError: one has no default, or no plain one.
    """
    defaults = {}
    for name, argument in inspect.signature(_function(ref)).parameters.items():
        if not isinstance(argument.default, Parameter):
            needed = (
                f"suite()'s argument '{name}' needs a default that is a number, a text, or True or "
                "False"
            )
            raise UsageError(f"The suite file '{ref.file or ref.name}': {needed}.")
        defaults[name] = argument.default
    return defaults


def _function(ref: SuiteRef) -> Callable[..., object]:
    module = _module(ref)
    if _library(ref.name):
        return partial(module.suite, ref.file or ref.name.partition(":")[2])
    function: Callable[..., object] | None = getattr(module, "suite", None)
    if not inspect.isfunction(function):
        raise UsageError(
            f"The suite file '{module.__file__}' has no function suite() that returns a Suite."
        )
    return function


def _module(ref: SuiteRef) -> ModuleType:
    if prefix := _library(ref.name):
        return _library_module(prefix)
    return (
        _import_file(Path(ref.file)) if ref.file else importlib.import_module(f"suites.{ref.name}")
    )


@cache
def _import_file(path: Path) -> ModuleType:
    """Import a suite file, with its folder importable as it would be for a script."""
    sys.path.insert(0, str(path.parent))
    module = ModuleType(f"ampmeter_suite_{path.stem}")
    module.__file__ = str(path)
    with _blaming(f"The suite file '{path}' cannot be loaded", str(path)):
        code = compile(path.read_bytes(), str(path), "exec")
    if "suite" not in code.co_names:  # it may be a training, which must not run
        raise UsageError(
            f"The suite file '{path}' has no function suite() that returns a Suite, so it was not "
            "run. A training script is measured as it is by: python run_bench.py script --inject "
            f"fp32,amp-bf16 -- {path.name}"
        )
    sys.modules[module.__name__] = module
    with _blaming(f"The suite file '{path}' cannot be loaded", str(path)):
        exec(code, module.__dict__)
    return module


@contextmanager
def _blaming(what: str, file: str) -> Iterator[None]:
    """Raise a UsageError for whatever anybody's code raises, with the line of ``file`` if it is known."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from error
    except BaseException as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == file
        ]
        if isinstance(error, SyntaxError):
            lines.append(error.lineno)
        line = f"line {lines[-1]}: " if lines else ""
        raise UsageError(
            f"{what}: {line}{type(error).__name__}: {str(error).rstrip('.')}."
        ) from error


def _convert(option: str, name: str, text: str, default: Parameter) -> Parameter:
    """Convert a command line's text to the type of the argument's default."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in BOOLEANS:
            raise UsageError(f"{option} {name} must be yes or no, not '{text}'.")
        return BOOLEANS[text.lower()]
    kind = type(default)
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= MOST:  # nor is it NaN
        number = "a whole number" if kind is int else "a number"
        raise UsageError(f"{option} {name} must be {number} of at most {MOST:g}, not '{text}'.")
    return value
