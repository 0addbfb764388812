"""Every error Outrider raises on purpose.

    OutriderError                 one line for the user: the value at fault, and the remedy
    ├── InvalidRequestError       a request asks for something impossible (also a ValueError)
    ├── ConfigError               engine or model options that cannot work together (also a ValueError)
    │   └── MissingExtensionError a part of Outrider that is not installed
    ├── ModelNotFoundError        a name, path or hub id leads to no model
    ├── ModelFormatError          a model file is damaged, unsafe or of an unsupported kind
    ├── IncompatibleDraftError    a draft that does not share the target's vocabulary
    ├── DownloadError             a file could not be fetched, or arrived damaged
    ├── CapacityError             no room: cache slots, memory or disk
    ├── NumericalError            the model produced NaN, or no token at all is possible
    ├── GrammarError              a structured output came to a dead end, or its grammar became too complex
    ├── WeightsReplacedError      a request ended because the model's weights were replaced
    └── EngineDeadError           the engine has stopped, by an accident or because it was closed

Each message names the offending value and what to change. The command line prints the message and
exits with ``exit_code``; it never shows a traceback for these.
"""

from __future__ import annotations


class OutriderError(Exception):
    """Base of all deliberate errors; ``str(error)`` is one line a user can act on."""

    exit_code = 1


class InvalidRequestError(OutriderError, ValueError):
    """A request asks for something impossible.

    ``param`` names the field at fault, if there is one; ``code`` is OpenAI's name of the error, if it has one.
    """

    exit_code = 2

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class ConfigError(OutriderError, ValueError):
    """Options that are wrong in themselves or together."""

    exit_code = 2


class MissingExtensionError(ConfigError):
    """A part of Outrider that another distribution brings, which is not installed."""


class ModelNotFoundError(OutriderError):
    """A name, path or hub id leads to no model."""

    exit_code = 2


class ModelFormatError(OutriderError):
    """A model file is damaged, unsafe or of an unsupported kind."""

    exit_code = 2


class IncompatibleDraftError(OutriderError):
    """A draft model that does not share the target's vocabulary or end-of-text ids."""

    exit_code = 2


class DownloadError(OutriderError):
    """A file could not be fetched, or what arrived is damaged."""


class CapacityError(OutriderError):
    """No room left: cache slots, memory or disk."""


class NumericalError(OutriderError):
    """The model produced NaN, or the request's options leave no possible token."""


class NoTokenError(NumericalError):
    """A request's own options leave no token that could come next."""


class GrammarError(OutriderError):
    """A structured output cannot go on: its grammar allows nothing more, or became too complex on the way."""


class WeightsReplacedError(OutriderError):
    """The model's weights were replaced while a request ran, and the caller of that did not wait for it."""


class EngineDeadError(OutriderError):
    """The engine has stopped, by an accident or because it was closed. Nothing can be asked of it any more."""
