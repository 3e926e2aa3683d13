# bash completion for HELM's programs. They are asked for their options themselves, so that this never lags behind.
_helm()
{
    local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
    local command= commands name value help names=() i
    if [[ ${program##*/} == helm-cli ]]; then
        commands=" $("$program" --print-options 2>/dev/null | sed -n '/^[a-z]/s/\t.*//p' | tr '\n' ' ')"
        for ((i = 1; i < COMP_CWORD; i++)); do
            [[ $commands == *" ${COMP_WORDS[i]} "* ]] && command=${COMP_WORDS[i]} && break
        done
    fi
    COMPREPLY=()
    while IFS=$'\t' read -r name value help; do
        if [[ $name == "$previous" && $name == --* && $value != - ]]; then
            if [[ $value == *'|'* ]]; then
                COMPREPLY=($(compgen -W "${value//|/ }" -- "$current"))
            else
                COMPREPLY=($(compgen -f -- "$current"))
            fi
            return
        fi
        [[ $name == --* && $current != -* ]] || names+=("$name")
    done < <("$program" $command --print-options 2>/dev/null)
    COMPREPLY=($(compgen -W "${names[*]}" -- "$current"))
    [[ $current == -* ]] || COMPREPLY+=($(compgen -f -- "$current"))
}
complete -o filenames -F _helm helm-cli helmd helm-gateway helm-plan helm-profile helm-inspect helm-quantize helm-mkmodel helm-bench
