# SPDX-License-Identifier: Apache-2.0
"""Public names of the reader of ModelNet40."""

from torchvox.data.readers.modelnet import ModelNet40

__all__ = ["ModelNet40"]
