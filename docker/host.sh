#!/bin/sh
# The SSH server of one host in a container, as the user who runs this; nobody else can log in.
#   host.sh NAME [PORT] [HOSTS_FOLDER]
set -eu
name=$1 port=${2:-2222} keys=${3:-/keys/hosts}
# What the image and compose put into the environment (CUDA's folders, the hub's cache) is not handed to sessions by sshd itself.
# StrictModes would judge the folders above the keys, which are the container's.
exec /usr/sbin/sshd -D -e -f /dev/null -p "$port" -h "$keys/$name" \
  -o "AuthorizedKeysFile $keys/authorized_keys" \
  -o "AllowUsers $(id -un)" \
  -o "PermitRootLogin prohibit-password" \
  -o "PasswordAuthentication no" \
  -o "KbdInteractiveAuthentication no" \
  -o "StrictModes no" \
  -o "UsePAM no" \
  -o "PidFile none" \
  -o "PrintMotd no" \
  -o "Subsystem sftp internal-sftp" \
  -o "SetEnv HOME=\"$HOME\" PATH=\"$PATH\" LD_LIBRARY_PATH=\"${LD_LIBRARY_PATH:-}\" CUDA_HOME=\"${CUDA_HOME:-}\"${HF_HOME:+ HF_HOME=\"$HF_HOME\"}"
