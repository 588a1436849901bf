package sandbox

import "github.com/berth-storage/berth/host"

// realHost is the machine that this process runs on.
func realHost() host.Host { return host.New(host.Options{}) }
