"""A model's chat template: a Jinja program from a file that may have come over the network, so it runs in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from outrider.shared.errors import ConfigError, InvalidField

if TYPE_CHECKING:
    from jinja2 import Template

MAX_TEMPLATE_CHARACTERS = 1 << 18
MAX_TEXT_CHARACTERS = 1 << 24


class ChatTemplate:
    """Messages to the target's own format, letter by letter as transformers' ``apply_chat_template`` does it."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special = dict(special_tokens)
        self._template: Template | None = None

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        """The conversation as text.

        Raises InvalidField ("messages") for what the template refuses, ConfigError for a template that is missing or
        cannot be compiled.
        """
        import jinja2  # with `_compile`, 40 ms that streaming raw text does not need

        self._template = self._template or self._compile()
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special,
            ):
                size += len(piece)
                if size > MAX_TEXT_CHARACTERS:
                    raise InvalidField("messages", f"more than {MAX_TEXT_CHARACTERS} characters")
                pieces.append(piece)
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            AttributeError,
            LookupError,
            ArithmeticError,
        ) as error:
            raise InvalidField("messages", f"refused by the chat template: {error}") from error
        return "".join(pieces)

    def _compile(self) -> Template:
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if not self.source:
            raise ConfigError("--target", "this target has no chat template", remedy="give raw text instead")
        if len(self.source) > MAX_TEMPLATE_CHARACTERS:
            raise ConfigError("--target", f"a chat template of {len(self.source)} characters is too long")
        # The settings, globals and filter of transformers.utils.chat_template_utils.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.filters["tojson"] = _tojson
        try:
            return environment.from_string(self.source)
        except jinja2.TemplateError as error:
            raise ConfigError("--target", f"the chat template cannot be compiled: {error}") from error


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
