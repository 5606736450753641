"""Coordinator and sites without regions or parties."""
