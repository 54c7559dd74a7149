"""What is replayed: a server and the requests that are played on it, and what came of
one play."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.traffic.case.bodies import (
        opened as opened_body,
        placed as with_placed_folders,
        wire as wire,
    )
    from mmrepro.traffic.case.expecting import (
        beside_whole as beside_whole,
        checked as check_expectations,
        expecting as with_expectations,
    )
    from mmrepro.traffic.case.fetching import asks_elsewhere as asks_elsewhere
    from mmrepro.traffic.case.files import (
        MAX_IMAGE_BYTES as MAX_IMAGE_BYTES,
        case_digest as case_digest,
        case_text as case_text,
        pictures as pictures,
        read_case as read_case,
        read_contents as read_contents,
        scripted_model as scripted_model,
        write_case as write_case,
    )
    from mmrepro.traffic.case.model import (
        CASE_DIR as CASE_DIR,
        CASE_FILE as CASE_FILE,
        CHAT as CHAT,
        COMPLETIONS as COMPLETIONS,
        IMAGES_DIR as IMAGES_DIR,
        LEAVE_S as LEAVE_S,
        SCRIPT_FILE as SCRIPT_FILE,
        Barrier as Barrier,
        Case as Case,
        Collision as Collision,
        Content as Content,
        Expect as Expect,
        Image as Image,
        Message as Message,
        Near as Near,
        Noise as Noise,
        Operation as Operation,
        Origin as Origin,
        Part as Part,
        Relayout as Relayout,
        Resized as Resized,
        ServerWanted as ServerWanted,
        Solid as Solid,
        Tiles as Tiles,
    )
    from mmrepro.traffic.case.sending import (
        Played as Played,
        PlayState as PlayState,
        Reading as Reading,
        Sending as Sending,
        Time as Time,
        play_case as play_case,
    )
    from mmrepro.traffic.case.typed import (
        in_order as in_order,
        server_options as server_options,
        server_steps as server_steps,
    )
else:
    __getattr__ = lazily(__name__)
