"""How `import horovod` finds this project. `modules/` stands on workers' search paths and holds `horovod` alone."""
