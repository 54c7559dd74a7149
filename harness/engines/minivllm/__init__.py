"""minivllm: the small engine in ``reproducers/minivllm``."""

from mmrepro.engines.minivllm.adapter import MinivllmEngine as MinivllmEngine

ENGINE = MinivllmEngine
