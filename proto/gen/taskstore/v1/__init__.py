"""Generated from `proto/`. Do not edit."""
