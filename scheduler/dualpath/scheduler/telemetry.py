"""Logs as one JSON object per line on stderr, or readable on a terminal; never a line per turn, never prompt text."""

import logging
import sys

import structlog


def configure_logs(level: str) -> None:
    """raises ValueError for an unknown level"""
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
