"""Jobs as processes of this machine. Import the modules by name: each supervisor imports this package too."""
