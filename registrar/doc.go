// Package registrar speaks the plugin registration protocol
// (k8s.io/kubelet/pkg/apis/pluginregistration/v1) from both of its ends: Serve
// announces a CSI driver to whoever watches a plugins_registry folder, and
// Watcher is the one that watches, as the kubelet does.
//
//	driver                               watcher
//	bind <dir>/<name>-reg.sock   ──────▶ the folder changed
//	                             ◀────── GetInfo
//	{type, name, endpoint, versions} ──▶ validate, Handler.Register
//	                             ◀────── NotifyRegistrationStatus(true | false + why)
//	unlink the socket            ──────▶ Handler.Deregister
//
// Nothing polls: the folder is watched with fsnotify, and only a failed attempt
// waits, with exponential backoff. A socket that is made again at the same path
// is a new instance of the plugin, and starts afresh.
package registrar
