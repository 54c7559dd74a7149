"""Recorded traffic made into a case: read, anonymised, scaled."""

from mmrepro.capture.anonymise import anonymise
from mmrepro.capture.messages import Captured, Contents
from mmrepro.capture.read import read
from mmrepro.capture.scale import scale

__all__ = ["Captured", "Contents", "anonymise", "read", "scale"]
