# SPDX-License-Identifier: Apache-2.0
"""Adapters: code written for other libraries runs on torchvox."""
