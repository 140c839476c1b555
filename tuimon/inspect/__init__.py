"""Patients that are no training: files of weights, read without executing anything of them."""
