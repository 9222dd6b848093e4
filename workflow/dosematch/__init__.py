"""DoseMatch: train arms under a matched dose, evaluate them on frozen panels, decide with paired statistics."""

__version__ = "0.1.0"
