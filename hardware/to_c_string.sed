# SPDX-License-Identifier: Apache-2.0
# A text file as adjacent C string literals, one a line.
s/["\\]/\\&/g
s/.*/"&\\n"/
