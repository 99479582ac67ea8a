#!/bin/sh
# Keys of a private network of containers, made once: the controller's, one for each host, and the controller's
# ssh_config with the hosts' keys known beforehand.
#   keys.sh CONTROLLER_FOLDER HOSTS_FOLDER USER NAME=ADDRESS:PORT ...
set -eu
controller=$1 hosts=$2 user=$3
shift 3
umask 077
if [ -f "$controller/config" ]; then
  exit 0 # an earlier start made them
fi
rm -f "$controller/key" "$controller/key.pub" "$controller/known_hosts" "$controller/config.part"
ssh-keygen -q -t ed25519 -N '' -C controller -f "$controller/key"
cp "$controller/key.pub" "$hosts/authorized_keys"
for host in "$@"; do
  name=${host%%=*} address=${host#*=}
  rm -f "$hosts/$name" "$hosts/$name.pub"
  ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$hosts/$name"
  printf '[%s]:%s %s\n' "${address%:*}" "${address##*:}" "$(cut -d ' ' -f 1,2 "$hosts/$name.pub")" \
    >>"$controller/known_hosts"
  printf 'Host %s\n  HostName %s\n  Port %s\n' "$name" "${address%:*}" "${address##*:}" >>"$controller/config.part"
done
printf 'Host *\n  User %s\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s\n' \
  "$user" "$controller/key" "$controller/known_hosts" >>"$controller/config.part"
mv "$controller/config.part" "$controller/config" # last: a half-made set is made anew
