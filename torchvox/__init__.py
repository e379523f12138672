# SPDX-License-Identifier: Apache-2.0
"""torchvox: point-cloud ops for PyTorch."""
