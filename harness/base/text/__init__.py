"""Foreign text made safe to show and private enough to keep."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.base.text.addresses import (
        goes_out as goes_out,
        is_address as is_address,
        is_local as is_local,
        is_local_host as is_local_host,
    )
    from mmrepro.base.text.looks import conversation as conversation_spans
    from mmrepro.base.text.named import words_of as named_words_of
    from mmrepro.base.text.opaque import Span as Span, names_a_digest as names_a_digest
    from mmrepro.base.text.redact import (
        PLACEHOLDER as REDACTED,
        Redactor as Redactor,
        names_a_secret as names_a_secret,
    )
    from mmrepro.base.text.sanitize import (
        Mask as Mask,
        clip as clip,
        mask_of as mask_of,
        one_line as one_line,
        plain as plain,
        unmasked as unmasked,
    )
    from mmrepro.base.text.wrapping import (
        columns_of as columns_of,
        line_spans as line_spans,
        wrapped as wrapped,
    )
else:
    __getattr__ = lazily(__name__)
