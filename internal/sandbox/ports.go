package sandbox

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that the kernel gives to outgoing
// connections (ip_local_port_range, from 32768 by default), so that no client
// of this machine can sit on one between the choice and its use.
const (
	portFirst = 20000
	portLast  = 31999
)

// freePorts finds n different ports on loopback that nobody listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range 100 * n {
		port := portFirst + rand.IntN(portLast-portFirst+1)
		l, err := net.Listen("tcp", loopback(port)) //nolint:noctx // it does not wait
		if err != nil {
			continue
		}
		// Held until all are found, which keeps them apart.
		defer l.Close()
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("finding %d free ports on loopback between %d and %d", n, portFirst, portLast)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
