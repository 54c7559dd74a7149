"""minivllm: failures of vLLM, SGLang and LMDeploy, in twenty lines each.

Each variant switches one of them on in the engine of ``reproducers/minivllm``, drives it there over
HTTP, and looks for the symptom of the original and for its reason. Small and fast, so that the
harness's own tests can have every kind of failure: a hang, a dead loop, single errors, silence.
"""

from mmrepro.scenario import with_variants
from mmrepro.scenarios.borrowed_faults.ghost_key import GhostKeyLru
from mmrepro.scenarios.borrowed_faults.kv_budget import KvBudget
from mmrepro.scenarios.borrowed_faults.pad_value import PadValueKey
from mmrepro.scenarios.borrowed_faults.reused_mask import ReusedMask

SCENARIO = with_variants(GhostKeyLru(), PadValueKey(), KvBudget(), ReusedMask())
