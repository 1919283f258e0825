"""What NVML says about the GPUs, as a `GpuSnapshot`.

Importing this package loads neither pynvml nor the driver; that happens in the first reading.
"""

from llmobs.gpu.publish import samples
from llmobs.gpu.reader import GpuReader

__all__ = ["GpuReader", "samples"]
