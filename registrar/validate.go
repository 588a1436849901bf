package registrar

import (
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Plugin is a validated registration.
type Plugin struct {
	// Name is the CSI driver's name.
	Name string
	// Endpoint is the path of the driver's socket.
	Endpoint string
	// Version is the version of CSI agreed on: the highest offered with major 1.
	Version string
	// Socket is the path of the registration socket: with the moment of its
	// making, the identity of this instance.
	Socket string
}

// maxDriverName is CSI's bound on a driver's name, in bytes.
const maxDriverName = 63

// validate turns what a plugin says of itself into a Plugin, or says what is
// wrong with it and what would be right.
func validate(socket string, info *registerapi.PluginInfo) (Plugin, error) {
	if info.GetType() != registerapi.CSIPlugin {
		return Plugin{}, fmt.Errorf("plugin type %q: only %q is served here", info.GetType(), registerapi.CSIPlugin)
	}
	name := info.GetName()
	if len(name) > maxDriverName {
		return Plugin{}, fmt.Errorf("driver name %q: longer than %d bytes", name, maxDriverName)
	}
	if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
		return Plugin{}, fmt.Errorf("driver name %q: %s", name, errs[0])
	}
	chosen, err := chooseVersion(info.GetSupportedVersions())
	if err != nil {
		return Plugin{}, fmt.Errorf("driver %s: %w", name, err)
	}
	endpoint := info.GetEndpoint()
	if endpoint == "" {
		// The protocol's default: the driver listens on the registration socket.
		endpoint = socket
	}
	if !filepath.IsAbs(endpoint) {
		return Plugin{}, fmt.Errorf("driver %s: endpoint %q is not an absolute path", name, endpoint)
	}
	return Plugin{Name: name, Endpoint: filepath.Clean(endpoint), Version: chosen, Socket: socket}, nil
}

// chooseVersion is the highest of the offered versions with major 1. Versions
// that cannot be read are passed over (kubelet, csi_plugin.go,
// highestSupportedVersion).
func chooseVersion(offered []string) (string, error) {
	if len(offered) == 0 {
		return "", errors.New("supported_versions is empty; name at least 1.0.0")
	}
	var best *version.Version
	for _, o := range offered {
		v, err := version.ParseGeneric(o)
		if err != nil || v.Major() != 1 {
			continue
		}
		if best == nil || best.LessThan(v) {
			best = v
		}
	}
	if best == nil {
		return "", fmt.Errorf("supported_versions %q: none has major version 1", offered)
	}
	return best.String(), nil
}
