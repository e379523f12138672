# SPDX-License-Identifier: Apache-2.0
"""Replaces `pointnet2_ops` 3.0 (Pointnet2_PyTorch); its modules are below."""
