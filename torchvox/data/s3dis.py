# SPDX-License-Identifier: Apache-2.0
"""Public names of the reader of S3DIS."""

from torchvox.data.readers.s3dis import S3DIS

__all__ = ["S3DIS"]
