// Package provision turns a claim for which a node is selected into a volume
// and a PersistentVolume.
//
// One claim goes through the phases listed in Reconcile, each in its own file:
//
//	eligible  is the claim ours to provision? (pure: decide)
//	begin     write down that CreateVolume is about to be called
//	confirm   ask the API server, not a cache, that the claim still wants it
//	create    CreateVolume, and what its outcome means
//	publish   create the PersistentVolume
//	finish    drop the record
//
// The record of begin is what makes the room safe. From the moment it is
// durable until it is dropped, a volume may exist that no PersistentVolume
// names. Whatever ends the attempt (the claim deleted, the node deselected,
// the process killed), the record is brought to one of two ends: the
// PersistentVolume exists, or the volume is known not to. See undo.
//
// The name of volume and PersistentVolume follows from the claim's UID, and
// the queue runs one pass per UID at a time, so a claim never gets two volumes
// on one node. Between nodes the API server decides: there can be only one
// PersistentVolume of the name, and the node that comes second deletes its
// volume.
//
// The semantics are those of external-provisioner in its node deployment with
// strict topology; where it forgets at a restart, this room does not.
package provision
