package podruntime

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/host/container"
)

// TestMain lets the test binary be the containers.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == container.InitCommand {
		os.Exit(container.Init())
	}
	os.Exit(m.Run())
}

// world is one node: real containers, a real socket to an agent, and objects in
// memory. The runtime on a real API server is tested in test/e2e.
type world struct {
	t      *testing.T
	client *fake.Clientset
	agent  *fakeAgent
	socket string
	dir    string
	data   string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, client: fake.NewClientset(), dir: filepath.Join(t.TempDir(), "runtime"), data: t.TempDir()}
	w.socket = filepath.Join(t.TempDir(), "s")
	w.agent = newFakeAgent(w.data)
	w.agent.serve(t, w.socket)
	return w
}

// start runs a runtime until the test ends, or until stop is called.
func (w *world) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	agent := runAgent(w.t, w.socket)
	r := New(Config{
		NodeName: "node-1", Zone: "zone-1", Dir: w.dir, Hide: w.dir, Marker: "BERTH_SANDBOX=" + w.dir,
		APIHost: "127.0.0.1", APIPort: "1", Client: w.client, Volumes: agent,
	})
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
	w.t.Cleanup(stop)
	return stop
}

// pod makes a pod that runs a script with the agent's volume at /data.
func (w *world) pod(name, script string, change ...func(*corev1.Pod)) {
	w.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName: "node-1", RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: ptr.To[int64](5),
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}},
			Containers: []corev1.Container{{
				Name: "c", Command: []string{"sh", "-c", script},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	if _, err := w.client.CoreV1().Pods("default").Create(w.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// markDeleted does what the API server does on a deletion with grace.
func (w *world) markDeleted(name string) {
	w.t.Helper()
	pod, err := w.client.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = new(metav1.Now()), pod.Spec.TerminationGracePeriodSeconds
	if _, err := w.client.CoreV1().Pods("default").Update(w.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// await waits until the pod, nil when it is gone, is as wanted.
func (w *world) await(name, what string, wanted func(*corev1.Pod) bool) {
	w.t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		pod, err := w.client.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			pod = nil
		} else if err != nil {
			w.t.Fatal(err)
		}
		if wanted(pod) {
			return
		}
		select {
		case <-deadline:
			w.t.Fatalf("pod %s: never %s; it is %+v", name, what, pod)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (w *world) awaitRunning(name string) {
	w.t.Helper()
	w.await(name, "ready", func(p *corev1.Pod) bool {
		return p != nil && p.Status.Phase == corev1.PodRunning && p.Status.ContainerStatuses[0].Ready
	})
}

func (w *world) awaitGone(name string) {
	w.t.Helper()
	w.await(name, "gone", func(p *corev1.Pod) bool { return p == nil })
}

func (w *world) awaitData(name, want string) {
	w.t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		got, _ := os.ReadFile(filepath.Join(w.data, name))
		if string(got) == want {
			return
		}
		select {
		case <-deadline:
			w.t.Fatalf("the volume's file %s holds %q, want %q", name, got, want)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

const untilTerm = "trap 'echo term >> /data/log; exit 0' TERM; echo start >> /data/log; while true; do sleep 0.05; done"

// TestLifeAndEnd: the volume is there before the process, and is released after
// its end; the object goes last.
func TestLifeAndEnd(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("p", untilTerm)
	w.awaitRunning("p")
	w.awaitData("log", "start\n")
	if got := w.agent.holds(); len(got) != 1 || got[0] != "uid-p" {
		t.Errorf("the agent holds %v", got)
	}
	w.markDeleted("p")
	w.awaitGone("p")
	w.awaitData("log", "start\nterm\n")
	if got := w.agent.holds(); len(got) != 0 {
		t.Errorf("the object is gone, and the agent still holds %v", got)
	}
}

// TestStubbornProcess: who ignores SIGTERM is killed when the grace is over; an
// object that is taken away by force ends the grace.
func TestStubbornProcess(t *testing.T) {
	w := newWorld(t)
	w.start()
	const stubborn = "trap '' TERM; echo start > /data/log; while true; do sleep 0.05; done"
	w.pod("short", stubborn, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) })
	w.awaitRunning("short")
	w.awaitData("log", "start\n")
	w.markDeleted("short")
	w.awaitGone("short")
	w.pod("long", stubborn, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](100000) })
	w.awaitRunning("long")
	w.markDeleted("long")
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "long", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(60 * time.Second)
	for len(w.agent.holds()) > 0 {
		select {
		case <-deadline:
			t.Fatal("the volume of a pod that was deleted by force is never released")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestEndsByItself: a pod that is done gives its volumes back at once; its
// object stays until it is deleted.
func TestEndsByItself(t *testing.T) {
	w := newWorld(t)
	w.start()
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	w.pod("good", "exit 0", never)
	w.pod("bad", "exit 7", never)
	w.await("good", "succeeded", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	w.await("bad", "failed with its code", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && p.Status.ContainerStatuses[0].State.Terminated.ExitCode == 7
	})
	deadline := time.After(60 * time.Second)
	for len(w.agent.holds()) > 0 {
		select {
		case <-deadline:
			t.Fatalf("the agent still holds %v", w.agent.holds())
		case <-time.After(10 * time.Millisecond):
		}
	}
	w.markDeleted("good")
	w.awaitGone("good")
}

// TestRestartsAndInit: init containers run in order before the others; a
// container that fails is started again and counted.
func TestRestartsAndInit(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("p", "echo main >> /data/log; [ $(grep -c main /data/log) = 3 ] || exit 1; sleep 1000", func(p *corev1.Pod) {
		for _, name := range []string{"first", "second"} {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{
				Name: name, Command: []string{"sh", "-c", "echo $NAME $EXPANDED >> /data/log"},
				Env:          []corev1.EnvVar{{Name: "NAME", Value: name}, {Name: "EXPANDED", Value: "<$(NAME)>"}},
				VolumeMounts: p.Spec.Containers[0].VolumeMounts,
			})
		}
	})
	w.awaitData("log", "first <first>\nsecond <second>\nmain\nmain\nmain\n")
	w.await("p", "restarted twice", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return p.Status.Phase == corev1.PodRunning && len(s) == 1 && s[0].Ready && s[0].RestartCount == 2
	})
}

// TestNextRuntime: a runtime that ends takes the processes with it and leaves
// objects and volumes; the next one starts the pods again.
func TestNextRuntime(t *testing.T) {
	w := newWorld(t)
	stop := w.start()
	w.pod("p", "echo start >> /data/log; sleep 1000")
	w.awaitRunning("p")
	w.awaitData("log", "start\n")
	stop()
	if got := w.agent.holds(); len(got) != 1 {
		t.Errorf("a runtime that ended released %v", got)
	}
	w.start()
	w.awaitData("log", "start\nstart\n")
	w.await("p", "restarted", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && p.Status.ContainerStatuses[0].RestartCount == 1
	})
}

// TestLocalVolumes: what the pod reads from files that the runtime wrote.
func TestLocalVolumes(t *testing.T) {
	w := newWorld(t)
	for _, o := range []interface{ GetName() string }{
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cm"}, Data: map[string]string{"a": "A", "b": "B"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Data: map[string][]byte{"key": []byte("K")}},
	} {
		var err error
		switch o := o.(type) {
		case *corev1.ConfigMap:
			_, err = w.client.CoreV1().ConfigMaps("default").Create(t.Context(), o, metav1.CreateOptions{})
		case *corev1.Secret:
			_, err = w.client.CoreV1().Secrets("default").Create(t.Context(), o, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.start()
	script := `{ cat /cm/x/a /s/key /p/name /p/key; ls /cm; echo "$FROM $UID_OF_POD"; stat -c %a /s/key; touch /e/ok && echo wrote; touch /cm/no 2>/dev/null || echo refused; } > /data/out; sleep 1000`
	w.pod("p", script, func(p *corev1.Pod) {
		p.Labels = map[string]string{"l": "L"}
		p.Spec.Volumes = append(p.Spec.Volumes,
			corev1.Volume{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			corev1.Volume{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Items: []corev1.KeyToPath{{Key: "a", Path: "x/a"}},
			}}},
			corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr.To[int32](0o400)}}},
			corev1.Volume{Name: "p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['l']"}}}}},
				{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: new(true)}},
			}}}})
		c := &p.Spec.Containers[0]
		for _, name := range []string{"e", "cm", "s", "p"} {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
		}
		c.Env = []corev1.EnvVar{
			{Name: "FROM", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Key: "b"}}},
			{Name: "UID_OF_POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}},
		}
	})
	w.awaitData("out", "AKLKx\nB uid-p\n400\nwrote\nrefused\n")
}

// TestLogFile finds the log of the youngest pod of a name.
func TestLogFile(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.pod("p", "echo hello; sleep 1000")
	w.awaitRunning("p")
	file, err := LogFile([]string{w.dir}, "default", "p", "")
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(60 * time.Second)
	for {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(raw) == "hello\n" {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("the log holds %q", raw)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if _, err := LogFile([]string{w.dir}, "default", "p", "other"); err == nil || !strings.Contains(err.Error(), "c") {
		t.Errorf("another container: %v", err)
	}
	if _, err := LogFile([]string{w.dir}, "default", "absent", ""); err == nil {
		t.Error("a pod that is not there has a log")
	}
}
