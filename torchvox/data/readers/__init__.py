# SPDX-License-Identifier: Apache-2.0
"""Readers of stored data sets: KITTI, nuScenes, ModelNet40, S3DIS and labelled scans."""
