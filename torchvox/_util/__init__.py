# SPDX-License-Identifier: Apache-2.0
"""What every room of the Python layer uses: errors, extras, config files, locks, sizes."""
