# SPDX-License-Identifier: Apache-2.0
"""The networks of the programs whose checkpoints are imported, rewritten in plain torch from their
published behavior, and the comparison of an imported model with them. No op of torchvox computes
in them. `torchvox import --verify` runs the comparison from a source tree."""
