package story

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/volume"
)

// The crowd is a StatefulSet whose pods all come up at once.
const (
	crowdName = "crowd"
	crowdSize = 10
	// crowdEarly is how many of their claims are bound when kube-apiserver dies.
	crowdEarly  = 2
	crowdVolume = "data"
	crowdClaim  = 16 * volume.MiB
)

// serverIsKilled: kube-apiserver is killed in the middle of a rollout and
// started again; every pod comes up, each with one volume.
func (t *teller) serverIsKilled(ctx context.Context) error {
	server, err := t.cluster.Process("kube-apiserver")
	if err != nil {
		return err
	}
	if err := t.makeSet(ctx, t.setOf(crowdName, crowdSize, quiet, claimOf(crowdVolume, classExt4, crowdClaim))); err != nil {
		return err
	}
	names := podsOf(crowdName, crowdSize)
	claims := make([]string, 0, crowdSize)
	for _, n := range names {
		claims = append(claims, crowdVolume+"-"+n)
	}
	have, err := until(ctx, t.claimKind(), func(have map[string]*corev1.PersistentVolumeClaim) string {
		if n := countBound(have, claims); n < crowdEarly {
			return fmt.Sprintf("%d of %d are Bound", n, crowdSize)
		}
		return ""
	})
	if err != nil {
		return err
	}
	if err := server.Kill(); err != nil {
		return err
	}
	t.say("kill -9 of kube-apiserver when %d of the %d claims were Bound", countBound(have, claims), crowdSize)
	t.wait("waiting for kube-apiserver")
	if err := t.cluster.RestartAPIServer(ctx); err != nil {
		return err
	}
	t.say("kube-apiserver serves again")
	pods, err := t.untilReady(ctx, names...)
	if err != nil {
		return err
	}
	return t.eachHasOne(ctx, pods)
}

// countBound counts those of the named claims that are bound.
func countBound(have map[string]*corev1.PersistentVolumeClaim, names []string) int {
	n := 0
	for _, name := range names {
		if c := have[name]; c != nil && c.Status.Phase == corev1.ClaimBound {
			n++
		}
	}
	return n
}

// eachHasOne: each pod of the crowd has a volume of its own, with its own words;
// no volume is there twice, or is nobody's.
func (t *teller) eachHasOne(ctx context.Context, pods map[string]*corev1.Pod) error {
	owners := map[string]string{}
	perNode := map[string]int{}
	for name, pod := range pods {
		if n := pod.Status.ContainerStatuses[0].RestartCount; n > 0 {
			return fmt.Errorf("pod %s was started %d times anew", name, n)
		}
		v, err := t.volumeOf(ctx, pod, crowdVolume+"-"+name)
		if err != nil {
			return err
		}
		if other, taken := owners[v.pv.Spec.CSI.VolumeHandle]; taken {
			return fmt.Errorf("pods %s and %s share volume %s", other, name, v.pv.Name)
		}
		owners[v.pv.Spec.CSI.VolumeHandle] = name
		if err := t.starts(pod, crowdVolume, pod); err != nil {
			return err
		}
		perNode[pod.Spec.NodeName]++
	}
	volumes, err := until(ctx, t.volumeKind(), func(have map[string]*corev1.PersistentVolume) string {
		for _, pv := range have {
			if pv.Status.Phase != corev1.VolumeBound {
				return fmt.Sprintf("volume %s is %s", pv.Name, pv.Status.Phase)
			}
		}
		return ""
	})
	if err != nil {
		return err
	}
	if err := t.checkImages(volumes); err != nil {
		return err
	}
	t.say("all %d pods run, each with one volume of its own: %d on node-1, %d on node-2, %d on node-3", crowdSize, perNode["node-1"], perNode["node-2"], perNode["node-3"])
	t.say("the pools hold %d images, one for each PersistentVolume", len(volumes))
	return nil
}
