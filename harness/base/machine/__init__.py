"""This computer: what it is, what its children get, where things are kept."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.base.machine.answer import get as local_get
    from mmrepro.base.machine.configured import Configured as Configured
    from mmrepro.base.machine.files import (
        DEEPEST as DEEPEST,
        MOST_CONFIG_BYTES as MOST_CONFIG_BYTES,
        VISIBLE as VISIBLE_GPUS,
        Device as Device,
        FilesBelow as FilesBelow,
        FileState as FileState,
        cache_root as cache_root,
        detect_device as detect_device,
        device_of as device_of,
        digest as digest_of_files,
        environments_root as environments_root,
        files_below as files_below,
        folders_in as folders_in,
        hidden as hides_every_gpu,
        is_file as is_file,
        is_folder as is_folder,
        is_there as is_there,
        nvidia_driver as nvidia_driver,
        open_plain as open_plain,
        open_to_read as open_to_read,
        parse_toml as parse_toml,
        read_file as read_file,
        read_toml as read_toml,
        read_yaml as read_yaml,
        refuse_other_kinds as refuse_other_kinds,
        replacing as replacing,
        state as file_state,
        write_file as write_file,
    )
    from mmrepro.base.machine.gpu import (
        ORDER as GPU_ORDER,
        Choice as Choice,
        choose as choose_gpus,
        free_devices as free_devices,
        hide as hide_gpus,
        leased as leased_gpu,
        read_gpus as read_gpus,
        take as take_gpus,
        visible as visible_gpus,
    )
    from mmrepro.base.machine.host import (
        SHORT as SHORT_SHARE,
        Lateness as Lateness,
        child_environment as child_environment,
        die_with_parent as die_with_parent,
        host_facts as host_facts,
    )
    from mmrepro.base.machine.journal import (
        Head as JournalHead,
        Journal as Journal,
        JournalKind as JournalKind,
        KeptT as KeptT,
        Line as JournalLine,
        SessionJournal as SessionJournal,
    )
    from mmrepro.base.machine.limited import (
        OverLimit as OverLimit,
        WorkFailed as WorkFailed,
        WorkLimits as WorkLimits,
        within_limits as within_limits,
    )
    from mmrepro.base.machine.nvml import (
        Gpu as Gpu,
        GpuReading as GpuReading,
        Nvml as Nvml,
        NvmlAbsent as NvmlAbsent,
        short_uuid as short_uuid,
    )
    from mmrepro.base.machine.streams import (
        Streams as Streams,
        terminal_width as terminal_width,
    )
else:
    __getattr__ = lazily(__name__)
