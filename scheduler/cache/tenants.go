package cache

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-storage/berth/volume"
)

// tenantVolume is a volume of a pod and the claim that it comes from, empty for
// none. It takes a place where a driver attaches it.
type tenantVolume struct {
	key      volume.Key
	claim    string
	attaches bool
}

type attachment struct {
	driver string
	// pv is the volume's name; empty for an inline volume, whose handle is known.
	pv, handle string
}

// forgetTenants drops what was read of a node's pods. It needs mu.
func (c *Cache) forgetTenants(node string) {
	c.forgetOccupancy(node)
	for pod := range c.attachments.tenants[node] {
		c.attachments.evict(node, pod)
	}
}

// claimMoved forgets what was read of the pods that have a claim whose volume is
// another one now. It needs mu.
func (c *Cache) claimMoved(claim string) {
	for node := range maps.Clone(c.attachments.claimOn[claim]) {
		c.forgetOccupancy(node)
		for pod, volumes := range c.attachments.tenants[node] {
			if slices.ContainsFunc(volumes, func(v tenantVolume) bool { return v.claim == claim }) {
				c.attachments.evict(node, pod)
			}
		}
	}
}

// admit remembers a pod's volumes.
func (a *attachments) admit(node string, pod *corev1.Pod, volumes []tenantVolume) {
	if a.tenants[node] == nil {
		a.tenants[node] = map[*corev1.Pod][]tenantVolume{}
	}
	a.tenants[node][pod] = volumes
	for _, v := range volumes {
		if v.claim == "" {
			continue
		}
		if a.claimOn[v.claim] == nil {
			a.claimOn[v.claim] = map[string]int{}
		}
		a.claimOn[v.claim][node]++
	}
}

// evict forgets a pod's volumes.
func (a *attachments) evict(node string, pod *corev1.Pod) {
	for _, v := range a.tenants[node][pod] {
		if v.claim == "" {
			continue
		}
		if a.claimOn[v.claim][node]--; a.claimOn[v.claim][node] == 0 {
			delete(a.claimOn[v.claim], node)
		}
		if len(a.claimOn[v.claim]) == 0 {
			delete(a.claimOn, v.claim)
		}
	}
	delete(a.tenants[node], pod)
	if len(a.tenants[node]) == 0 {
		delete(a.tenants, node)
	}
}

// settleTenants remembers these pods of a node and no others. It needs mu.
func (c *Cache) settleTenants(t Tenants) {
	staying := map[*corev1.Pod]struct{}{}
	for pod := range t.Pods {
		staying[pod] = struct{}{}
		if _, known := c.attachments.tenants[t.Node][pod]; !known {
			if volumes := c.read(t.Node, pod); len(volumes) > 0 {
				c.attachments.admit(t.Node, pod, volumes)
			}
		}
	}
	for pod := range c.attachments.tenants[t.Node] {
		if _, stays := staying[pod]; !stays {
			c.attachments.evict(t.Node, pod)
		}
	}
}

// read is what the node's tenants say of a pod, or what is read of it now. It
// needs mu.
func (c *Cache) read(node string, pod *corev1.Pod) []tenantVolume {
	if volumes, known := c.attachments.tenants[node][pod]; known {
		return volumes
	}
	var out []tenantVolume
	for i := range pod.Spec.Volumes {
		if key, claim, ok := c.podVolume(pod, &pod.Spec.Volumes[i]); ok || claim != "" {
			out = append(out, tenantVolume{key, claim, ok})
		}
	}
	return out
}

// podVolume is the CSI volume of a volume of a pod, and the claim that it comes
// from; false for one that no driver attaches. It needs mu.
func (c *Cache) podVolume(pod *corev1.Pod, vol *corev1.Volume) (key volume.Key, claim string, ok bool) {
	var name string
	switch {
	case vol.PersistentVolumeClaim != nil:
		name = vol.PersistentVolumeClaim.ClaimName
	case vol.Ephemeral != nil:
		name = ephemeral.VolumeClaimName(pod, vol)
	default:
		key, ok = inlineKey(vol, pod.Namespace)
		return key, "", ok
	}
	claim = pod.Namespace + "/" + name
	pvc := get[corev1.PersistentVolumeClaim](c.stores.claims, claim)
	if pvc == nil || vol.Ephemeral != nil && ephemeral.VolumeIsForPod(pod, pvc) != nil {
		return volume.Key{}, claim, false
	}
	key, _, ok = c.claimKey(pvc)
	return key, claim, ok
}
