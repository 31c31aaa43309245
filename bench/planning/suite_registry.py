"""Find and load suites: files in suites/, files of the user's own, and models of libraries."""

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
from types import MappingProxyType, ModuleType

import suites  # before any folder of the user's is on sys.path
from bench.spec.errors import UsageError, nearest, unknown
from bench.spec.request import Request
from bench.spec.suite import Parameter, Suite
from bench.spec.trial import SuiteRef

# The packages whose models are suites, by what stands before a model's name. ``suites/_PREFIX.py``
# builds them, and ampmeter's extra of that name installs the package.
LIBRARIES = {
    "timm": "timm",
    "torchvision": "torchvision",
    "hf": "transformers",
}
# Above any number that a suite takes, so that a typo is refused before torch is asked for the
# memory.
MOST = 1e18
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
BOOLEANS = {
    "yes": True,
    "true": True,
    "no": False,
    "false": False,
}


def names() -> list[str]:
    """Return the names of the suites that come with the project, sorted."""
    files = Path(suites.__path__[0]).glob("[!_]*.py")
    return sorted(path.stem for path in files)


def refer(word: str, settings: Mapping[str, str] = NO_SETTINGS) -> SuiteRef:
    """Turn ``--suite``'s word into a reference that any process can load.

    Args:
        word: the suite's name, the path of a suite file, or a library's model as in
            ``timm:resnet18``.
        settings: values of arguments of its ``suite()``, as text; each is converted to the type of
            the argument's default, and names that it lacks are ignored.

    Raises:
        UsageError: there is no such suite, or its file cannot be loaded.
    """
    ref = _find(word)
    converted = {}
    for name, default in parameters(ref).items():
        if name in settings:
            converted[name] = _convert("--set", name, settings[name], default)
    ref = _changed(ref, converted)
    suite = load(ref)
    code = Path(_module(ref).__file__ or "").read_bytes()
    if _library(word) and ref.file:
        code += (Path(ref.file) / "config.json").read_bytes()
    digest = hashlib.blake2b(code, digest_size=6).hexdigest()
    return replace(ref, name=suite.name, digest=digest)


def _find(word: str) -> SuiteRef:
    """Return the reference of a suite by its name or place, without its parameters."""
    library = _library(word)
    if library:
        folder = Path(word.removeprefix(f"{library}:")).resolve()
        if "/" in word and folder.is_dir():
            return SuiteRef(name=f"{library}:{folder.name}", file=str(folder))
    elif word.endswith(".py"):
        path = Path(word)
        if not path.is_file():
            raise UsageError(f"There is no suite file '{path.resolve()}'.")
        return SuiteRef(name=path.stem, file=str(path.resolve()))
    elif word not in names():
        others = ["FILE.py"] + [f"{prefix}:MODEL" for prefix in LIBRARIES]
        raise unknown("suite", word, [*names(), *others])
    return SuiteRef(name=word)


def _library(name: str) -> str:
    """Return the library's prefix in the name of a suite; empty where there is none."""
    prefix, colon, _ = name.partition(":")
    if colon and prefix in LIBRARIES:
        return prefix
    return ""


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
    matches = fnmatch.filter(known, pattern if rest else f"{prefix}:*")
    if not matches:
        hint = nearest(pattern, known)
        raise UsageError(f"None of the {len(known)} models of {prefix} matches '{pattern}'.{hint}")
    return sorted(matches)


def _library_module(prefix: str) -> ModuleType:
    """Import what builds the models of a library.

    Raises:
        UsageError: the library is not installed.
    """
    package = LIBRARIES[prefix]
    if importlib.util.find_spec(package) is None:
        install = f"pip install 'ampmeter[{prefix}]'"
        raise UsageError(f"{prefix}:NAME needs {package}, which is not installed: {install}.")
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
    suite_names = [ref.name for ref in refs]
    if len({*suite_names}) < len(refs):
        raise UsageError(f"Two of the suites have the same name: {', '.join(suite_names)}.")
    known = {name for ref in refs for name in parameters(ref)}
    named = [name for name, _ in (*request.parameters, *request.sweep)]
    for name in named:
        # Ignoring one would measure another suite than was asked for.
        if name not in known:
            available = ", ".join(sorted(known))
            raise UsageError(
                f"No suite here has a parameter '{name}'.{nearest(name, known)} Available: "
                f"{available}."
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
    """Move ``batch_size`` out of the parameters that name a suite: rows have a column of it."""
    rest = dict(ref.parameters)
    size = rest.pop("batch_size", None)
    return replace(ref, parameters=tuple(rest.items()), batch_size=size)


def _swept(ref: SuiteRef, name: str, words: tuple[str, ...]) -> list[SuiteRef]:
    """Return the suite once for each value of a parameter; it alone if it has none of that name."""
    defaults = parameters(ref)
    if name not in defaults:
        return [ref]
    values = dict.fromkeys(_convert("--sweep", name, word, defaults[name]) for word in words)
    return [_changed(ref, {name: value}) for value in values]


def _changed(ref: SuiteRef, changes: dict[str, Parameter]) -> SuiteRef:
    changed = dict(ref.parameters) | changes
    return replace(ref, parameters=tuple(sorted(changed.items())))


def load(ref: SuiteRef) -> Suite:
    """Build the suite that ``ref`` refers to.

    Raises:
        UsageError: its file cannot be loaded, with the line at fault.
    """
    function = _function(ref)
    arguments = dict(ref.parameters)
    if ref.batch_size is not None:
        arguments["batch_size"] = ref.batch_size
    what = f"Suite '{ref.file or ref.name}' cannot be built"
    if arguments:
        given = " ".join(f"{name}={value}" for name, value in arguments.items())
        what += f" with {given}"
    with _blaming(what, inspect.getfile(_module(ref))):
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
            raise UsageError(
                f"The suite file '{ref.file or ref.name}': suite()'s argument '{name}' needs a "
                "default that is a number, a text, or True or False."
            )
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
    prefix = _library(ref.name)
    if prefix:
        return _library_module(prefix)
    if ref.file:
        return _import_file(ref.file)
    return importlib.import_module(f"suites.{ref.name}")


@cache
def _import_file(file: str) -> ModuleType:
    """Import a suite file, with its folder importable as it would be for a script."""
    path = Path(file)
    sys.path.insert(0, str(path.parent))
    module = ModuleType(f"ampmeter_suite_{path.stem}")
    module.__file__ = file
    with _blaming(f"The suite file '{file}' cannot be loaded", file):
        code = compile(path.read_bytes(), file, "exec")
        if "suite" not in code.co_names:  # it may be a training, which must not run
            raise UsageError(
                "It has no function suite() that returns a Suite, so it was not run. A training "
                "script is measured as it is by: python run_bench.py script --inject "
                f"fp32,amp-bf16 -- {path.name}"
            )
        sys.modules[module.__name__] = module
        exec(code, module.__dict__)
    return module


@contextmanager
def _blaming(what: str, file: str) -> Iterator[None]:
    """Raise a UsageError for whatever anybody's code raises, with the line of ``file`` if known."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from error
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        if isinstance(error, SyntaxError):
            lines.append(error.lineno)
        line = ""
        if lines:
            line = f"line {lines[-1]}: "
        kind = type(error).__name__
        text = str(error).rstrip(".")
        raise UsageError(f"{what}: {line}{kind}: {text}.") from error


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
