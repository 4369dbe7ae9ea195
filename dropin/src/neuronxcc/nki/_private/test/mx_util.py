"""Reference functions of AWS's tests; importing one that glia lacks is NotShipped."""

from glia_dropin.neuronxcc.mx import nc_matmul_mx_golden, quantize_mx_golden
from glia_dropin.neuronxcc.shipping import missing_kernel

__all__ = ["nc_matmul_mx_golden", "quantize_mx_golden"]

__getattr__ = missing_kernel("neuronxcc.nki._private.test.mx_util")
