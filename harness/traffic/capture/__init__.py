"""Recorded traffic made into a case: read, anonymised, scaled."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.traffic.capture.client import (
        ClientRun as ClientRun,
        ClientWanted as ClientWanted,
        beside as client_files,
        pictures_in as pictures_in,
        run_alone as run_alone,
        run_client as run_client,
        run_trusted as run_trusted,
        with_plain_addresses as with_plain_addresses,
        with_plain_commands as with_plain_commands,
    )
    from mmrepro.traffic.capture.mooncake import (
        RecordingExcerpt as RecordingExcerpt,
        write_trace as write_trace,
    )
    from mmrepro.traffic.capture.proxy import RecordingProxy as RecordingProxy
    from mmrepro.traffic.capture.read import (
        holds_case as holds_case,
        read as read_capture,
    )
    from mmrepro.traffic.capture.recording_box import BoxedRecording as BoxedRecording
    from mmrepro.traffic.capture.scale import scale as scale_capture
    from mmrepro.traffic.capture.texts import (
        common as common_prefix,
        encoded_by as encoded_by,
    )
else:
    __getattr__ = lazily(__name__)
