// SPDX-License-Identifier: Apache-2.0 OR MIT

package driver

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// mostGuests is how many connections /healthz has: the kubelet needs one.
	mostGuests = 32
	// guestWithin is how long a guest may take to ask, and to take its answer.
	guestWithin = 2 * time.Second
	// mostAsked bytes of a request.
	mostAsked = 8 << 10
)

// Serve pages at an address that every pod may reach, until the server is closed: one call a connection.
func Serve(address string, pages map[string]http.Handler) (server *http.Server, serve func() error, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	for path, page := range pages {
		mux.Handle("GET "+path, page)
	}
	server = &http.Server{
		Handler: mux, MaxHeaderBytes: mostAsked,
		ReadHeaderTimeout: guestWithin, ReadTimeout: guestWithin, WriteTimeout: guestWithin, IdleTimeout: guestWithin,
	}
	server.SetKeepAlivesEnabled(false)
	return server, func() error { return server.Serve(&newest{Listener: listener, most: mostGuests}) }, nil
}

// newest is a listener with a bound on its connections: one more closes the oldest. netutil.LimitListener
// would let a pod that holds all of them keep the kubelet's probe waiting.
type newest struct {
	net.Listener
	most int
	mu   sync.Mutex
	open []*guest
}

type guest struct {
	net.Conn
	of *newest
}

func (n *newest) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	one := &guest{conn, n}
	n.mu.Lock()
	n.open = append(n.open, one)
	var oldest *guest
	if len(n.open) > n.most {
		oldest = n.open[0]
	}
	n.mu.Unlock()
	if oldest != nil {
		oldest.Close()
	}
	return one, nil
}

// Close and make room.
func (g *guest) Close() error {
	g.of.mu.Lock()
	g.of.open = slices.DeleteFunc(g.of.open, func(one *guest) bool { return one == g })
	g.of.mu.Unlock()
	return g.Conn.Close()
}
