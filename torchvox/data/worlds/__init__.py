# SPDX-License-Identifier: Apache-2.0
"""Generated data sets: streets seen by a lidar, furnished rooms, and parametric shapes."""
