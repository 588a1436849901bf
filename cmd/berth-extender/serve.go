package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
)

const (
	// readTimeout is for the largest request over a slow network.
	readTimeout = 30 * time.Second
	// answerTime is what a bind needs beyond its budget, to write the binding and to
	// answer; the budget itself is the args' bindTimeoutSeconds.
	answerTime = 10 * time.Second
	// lastAnswers is for binds in flight when the program ends: they are cut off
	// where they wait, and keep what they wrote.
	lastAnswers = 10 * time.Second
	headerMax   = 64 << 10
)

// listener opens the address.
func (s *serveOptions) listener(ctx context.Context) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", s.address)
	if err != nil {
		return nil, fmt.Errorf("--serve-address: %w", err)
	}
	settings, err := s.tls(ctx)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	if settings == nil {
		return listener, nil
	}
	return tls.NewListener(listener, settings), nil
}

// tls is nil without a certificate. Its files are read again when they change, until
// ctx ends.
func (s *serveOptions) tls(ctx context.Context) (*tls.Config, error) {
	if s.certFile == "" {
		return nil, nil
	}
	own, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving", s.certFile, s.keyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	var callers *dynamiccertificates.DynamicFileCAContent
	var callersCA dynamiccertificates.CAContentProvider
	if s.clientCA != "" {
		if callers, err = dynamiccertificates.NewDynamicCAContentFromFile("client-ca", s.clientCA); err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		callersCA = callers
		// A caller may show a token instead.
		settings.ClientAuth = tls.VerifyClientCertIfGiven
	}
	current := dynamiccertificates.NewDynamicServingCertificateController(settings, callersCA, own, nil, nil)
	own.AddListener(current)
	if callers != nil {
		callers.AddListener(current)
		go callers.Run(ctx, 1)
	}
	if err := current.RunOnce(); err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	go own.Run(ctx, 1)
	go current.Run(1, ctx.Done())
	settings = settings.Clone()
	settings.GetConfigForClient = current.GetConfigForClient
	return settings, nil
}

// serve answers until ctx ends; binds that wait end with it.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, budget time.Duration) error {
	server := &http.Server{
		Handler: handler, BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: readTimeout + budget + answerTime,
		// kube-scheduler keeps its connections.
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: headerMax,
		ErrorLog: log.New(lines{klog.FromContext(ctx)}, "", 0),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("--serve-address: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		return errors.Join(fmt.Errorf("waiting for requests in flight: %w", err), server.Close())
	}
	return nil
}

// lines is net/http's log: handshakes of strangers, above all.
type lines struct{ klog.Logger }

func (l lines) Write(line []byte) (int, error) {
	l.V(2).Info("extender API", "said", string(line))
	return len(line), nil
}
