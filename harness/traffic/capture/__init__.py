"""Recorded traffic made into a case: read, anonymised, scaled."""

from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.messages import Captured, Contents
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.capture.scale import scale

__all__ = ["Captured", "Contents", "anonymise", "read", "scale"]
