"""Which backend vLLM's ``auto`` gives each of two regular expressions, by its own
validators.

``python grammar_backends.py FIRST SECOND``, with the interpreter of a vLLM environment;
without expressions, those of the scenario grammar-backend-latch. No server, no model,
no GPU. ``auto`` is xgrammar where that can parse the expression, and guidance otherwise
(vllm/sampling_params.py, SamplingParams._validate_structured_outputs). Prints one JSON
object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

FIRST, SECOND = "^(.*)$", "(?i)abc"


def backends(regex: str) -> dict[str, bool]:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex=regex))

    def takes(validate: Callable[..., object], **more: object) -> bool:
        try:
            validate(params, **more)
        except (
            Exception
        ) as refusal:  # ValueError; by 0.32.0 VLLMValidationError, which is none
            print(f"{validate.__name__}({regex!r}): {refusal}", file=sys.stderr)
            return False
        return True

    return {
        "xgrammar": takes(validate_xgrammar_grammar),
        "guidance": takes(validate_guidance_grammar, tokenizer=None),
    }


if __name__ == "__main__":
    given = sys.argv[1:3] if len(sys.argv) > 2 else [FIRST, SECOND]
    found = {
        f"{backend}_takes_{name}": takes
        for name, regex in zip(("first", "second"), given, strict=True)
        for backend, takes in backends(regex).items()
    }
    print(json.dumps(found))
