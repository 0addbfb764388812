"""``outrider serve`` with a chat template from each request, for the fuzzer of templates.

python -m tests.server.stress.templated serve -m MODEL
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.cli.main import main
from outrider.errors import InvalidRequestError, ModelFormatError
from outrider.tokenizer.chat_template import ChatTemplate, Rendered

FIELD = "fuzzed_template"
"""The name among ``chat_template_kwargs`` under which a request has its own."""


def install() -> None:
    """Let every template give way to that of the request."""
    render = ChatTemplate.render

    def own(
        template: ChatTemplate, messages: Sequence[Mapping[str, Any]], *, variables: Any = None, **options: Any
    ) -> Rendered:
        given = dict(variables or {})
        source = given.pop(FIELD, None)
        if source is None:
            return render(template, messages, variables=variables, **options)
        setup = template._setup
        try:
            made = ChatTemplate(source, setup["special_tokens"], setup["controls"])  # type: ignore[arg-type]
        except ModelFormatError as error:  # which the operator would be told of
            raise InvalidRequestError(str(error), param="messages") from None
        return render(made, messages, variables=given, **options)

    ChatTemplate.render = own  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    install()
    main()
