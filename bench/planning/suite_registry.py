"""Find and load suites: the files in suites/, files of the user's own, and models of libraries by their names."""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import suites  # before any folder of the user's is on sys.path
from bench.results.run_json import MOST
from bench.spec.errors import UsageError, nearest
from bench.spec.request import Request
from bench.spec.suite import Parameter, Suite
from bench.spec.trial import SuiteRef

LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}
"""The packages whose models are suites, by what stands before a model's name. ``suites/_PREFIX.py`` builds them, and
ampmeter's extra of that name installs the package."""


BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def names() -> list[str]:
    """Return the names of the suites that come with the project, sorted."""
    return sorted(path.stem for path in Path(suites.__path__[0]).glob("*.py") if not path.stem.startswith("_"))


def refer(word: str, settings: Mapping[str, str] | None = None) -> SuiteRef:
    """Turn ``--suite``'s word, a name or a path ending in .py, into a reference that any process can load.

    Args:
        word: the suite's name, the path of a suite file, or a library's model as in ``timm:resnet18``.
        settings: values of arguments of its ``suite()``, as text; each is converted to the type of the
            argument's default, and names that it lacks are ignored.

    Raises:
        UsageError: there is no such suite, or its file cannot be loaded.
    """
    file, name = None, Path(word).stem
    if _library(word):
        name, path = word, Path(word.partition(":")[2])
        if "/" in word and path.is_dir():
            name, file = f"{_library(word)}:{path.resolve().name}", str(path.resolve())
    elif word.endswith(".py"):
        if not Path(word).is_file():
            raise UsageError(f"There is no suite file '{word}'.")
        file = str(Path(word).resolve())
    elif word not in names():
        known = ", ".join(names())
        raise UsageError(
            f"There is no suite '{word}'.{nearest(word, names())} Available: {known}; the path of a .py file; or a "
            "model of a library, as in timm:resnet18, torchvision:resnet18 or hf:bert."
        )
    ref = SuiteRef(name=name, file=file)
    defaults = parameters(ref)
    given = {name: text for name, text in (settings or {}).items() if name in defaults}
    converted = tuple((name, _convert(name, text, defaults[name])) for name, text in sorted(given.items()))
    suite = _build(_function(ref), converted, word)
    text = Path(_module(ref).__file__ or "").read_bytes()
    if _library(word) and file:
        text += (Path(file) / "config.json").read_bytes()
    digest = hashlib.blake2b(text, digest_size=6).hexdigest()
    return SuiteRef(name=suite.name, file=file, digest=digest, parameters=converted)


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
        allowed = ", ".join(f"'{each}:*'" for each in LIBRARIES)
        raise UsageError(f"list takes a library and a pattern, such as {allowed} or 'timm:resnet*', not '{pattern}'.")
    known = [f"{prefix}:{name}" for name in _library_module(prefix).names()]
    matches = fnmatch.filter(known, f"{prefix}:{rest or '*'}")
    if not matches:
        raise UsageError(f"None of the {len(known)} models of {prefix} matches '{pattern}'.{nearest(pattern, known)}")
    return sorted(matches)


def _library_module(prefix: str) -> ModuleType:
    """Import what builds the models of a library.

    Raises:
        UsageError: the library is not installed.
    """
    package = LIBRARIES[prefix]
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{prefix}:NAME needs {package}, which is not installed: pip install 'ampmeter[{prefix}]'.")
    return importlib.import_module(f"suites._{prefix}")


def select(request: Request, *, on_cpu: bool = False) -> dict[SuiteRef, Suite]:
    """Return the suites of a request with their parameters: one for each variant and swept value.

    Args:
        request: names suites, parameters and values to sweep.
        on_cpu: whether nothing but a CPU measures, for which a suite may have parameters of its own.

    Raises:
        UsageError: a suite cannot be loaded, or a parameter or value is not one that they take.
    """
    refs = [refer(word, dict(request.parameters)) for word in request.suites]
    known = {name for ref in refs for name in parameters(ref)}
    named = [name for name, _ in (*request.parameters, *request.sweep)]
    for name in named:  # ignoring one would give wrong results
        if name == "weights" and name not in known:
            raise UsageError(
                "No suite here takes initial weights. --weights is for suites whose function has an argument "
                "'weights', such as intel_resnet18."
            )
        if name not in known:
            raise UsageError(f"No suite here has a parameter '{name}'. Available: {', '.join(sorted(known))}.")
    if len({ref.name for ref in refs}) < len(refs):
        raise UsageError(f"Two of the suites have the same name: {', '.join(ref.name for ref in refs)}.")
    if on_cpu:
        smaller = [load(ref).cpu_parameters.items() for ref in refs]
        changes = [{name: value for name, value in each if name not in named} for each in smaller]
        refs = [_changed(ref, change) for ref, change in zip(refs, changes, strict=True)]
    is_set = "batch_size" in dict(request.parameters) and not request.batch_sizes  # which are measured in its place
    if not is_set and "batch_size" not in dict(request.sweep):
        refs = [_unlabelled(ref) for ref in refs]
    variants = [variant for ref in refs for variant in _variants(ref, request.sweep)]
    return {ref: load(ref) for ref in variants}


def _unlabelled(ref: SuiteRef) -> SuiteRef:
    """Move ``batch_size`` out of the parameters that name a suite: rows have the batch size in a column."""
    rest = tuple((name, value) for name, value in ref.parameters if name != "batch_size")
    return replace(ref, parameters=rest, batch_size=dict(ref.parameters).get("batch_size"))


def _variants(ref: SuiteRef, sweep: tuple[tuple[str, tuple[str, ...]], ...]) -> list[SuiteRef]:
    """Return the variants that a suite names itself, or it alone, with all combinations of swept values."""
    variants = [_changed(ref, variant) for variant in load(ref).variants] or [ref]
    for name, words in sweep:
        variants = [changed for variant in variants for changed in vary(variant, name, words)]
    return variants


def _changed(ref: SuiteRef, changes: Mapping[str, Parameter]) -> SuiteRef:
    return replace(ref, parameters=tuple(sorted({**dict(ref.parameters), **changes}.items())))


def vary(ref: SuiteRef, name: str, words: tuple[str, ...]) -> list[SuiteRef]:
    """Return the suite once for each value of ``--sweep``, or it alone if it has no such parameter.

    Raises:
        UsageError: a word is no value of this parameter.
    """
    defaults = parameters(ref)
    if name not in defaults:
        return [ref]
    values = dict.fromkeys(_convert(name, word, defaults[name], "--sweep") for word in words)
    return [_changed(ref, {name: value}) for value in values]


def load(ref: SuiteRef) -> Suite:
    """Build the suite that ``ref`` refers to.

    Raises:
        UsageError: its file cannot be loaded, with the line at fault.
    """
    arguments = ref.parameters if ref.batch_size is None else (("batch_size", ref.batch_size), *ref.parameters)
    return _build(_function(ref), arguments, ref.file or ref.name)


def parameters(ref: SuiteRef) -> dict[str, Parameter]:
    """Return the arguments of the suite's function with their defaults: what ``--set`` can change."""
    return {name: argument.default for name, argument in inspect.signature(_function(ref)).parameters.items()}


def _build(function: Callable[..., object], arguments: tuple[tuple[str, Parameter], ...], where: str) -> Suite:
    try:
        suite = function(**dict(arguments))
    except UsageError as error:
        given = " ".join(f"{name}={value}" for name, value in arguments)
        changed = f" does not go with {given}" if given else ""
        raise UsageError(f"Suite '{where}'{changed}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it is anybody's code
        file = inspect.getfile(getattr(function, "func", function))
        raise UsageError(f"Suite '{where}' cannot be built: {_blame(error, file)}") from error
    if not isinstance(suite, Suite):
        raise UsageError(f"Suite '{where}': suite() must return a bench.spec.Suite, not {type(suite).__name__}.")
    return suite


def _function(ref: SuiteRef) -> Callable[..., object]:
    if _library(ref.name):
        return partial(_module(ref).suite, ref.file or ref.name.partition(":")[2])
    function: Callable[..., object] | None = getattr(_module(ref), "suite", None)
    if not inspect.isfunction(function):
        raise UsageError(f"The suite file '{ref.file or ref.name}' has no function suite() that returns a Suite.")
    for name, argument in inspect.signature(function).parameters.items():
        if not isinstance(argument.default, bool | int | float | str):
            raise UsageError(
                f"The suite file '{ref.file or ref.name}': suite()'s argument '{name}' needs a default that is "
                "a number, a text, or True or False."
            )
    return function


def _module(ref: SuiteRef) -> ModuleType:
    if prefix := _library(ref.name):
        return _library_module(prefix)
    return _import_file(Path(ref.file)) if ref.file else importlib.import_module(f"suites.{ref.name}")


def _import_file(path: Path) -> ModuleType:
    """Import a suite file, with its folder importable as it would be for a script."""
    name = f"ampmeter_suite_{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = ModuleType(name)
    module.__file__ = str(path)
    try:
        code = compile(path.read_bytes(), str(path), "exec")
        if "suite" not in code.co_names:  # it may be a training, which must not run
            raise UsageError(
                f"The suite file '{path}' has no function suite() that returns a Suite, so it was not run. A training "
                f"script is measured as it is by: python run_bench.py script --inject fp32,amp-bf16 -- {path.name}"
            )
        sys.modules[name] = module
        exec(code, module.__dict__)
    except BaseException as error:  # it is anybody's code
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt | UsageError):
            raise
        raise UsageError(f"The suite file '{path}' cannot be loaded: {_blame(error, str(path))}") from error
    return module


def _blame(error: BaseException, file: str) -> str:
    """Return the error, with the line of the user's file if it is known."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError):
        lines.append(error.lineno)
    line = f"line {lines[-1]}: " if lines else ""
    return f"{line}{type(error).__name__}: {str(error).rstrip('.')}."


def _convert(name: str, text: str, default: Parameter, option: str = "--set") -> Parameter:
    """Convert a command line's text to the type of the argument's default."""
    if isinstance(default, bool):
        if text.lower() in BOOLEANS:
            return BOOLEANS[text.lower()]
        raise UsageError(f"{option} {name} must be yes or no, not '{text}'.")
    try:
        value = type(default)(text)
    except ValueError as error:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise UsageError(f"{option} {name} must be {kind}, not '{text}'.") from error
    if isinstance(value, int | float) and not abs(value) <= MOST:  # nor is it NaN
        raise UsageError(f"{option} {name} must be a number of at most {MOST:g}, not '{text}'.")
    return value
